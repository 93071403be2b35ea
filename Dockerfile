# docker build -t dither .
# docker build -t dither --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
ARG BASE=python:3.12-slim
FROM ${BASE}
RUN if ! python3 -m ensurepip --version >/dev/null 2>&1; then \
        apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*; \
    fi; \
    python3 -m venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -r requirements.txt
WORKDIR /work
ENTRYPOINT ["dither"]
