# Containers with Cariama, from Debian packages (docs/cluster.md tells how to run them).
#   docker build -t cariama .                             # the programs and libraries
#   docker build -t cariama-build --target build .        # and what programs need to compile against them
FROM debian:bookworm AS build
WORKDIR /cariama
COPY scripts/setup scripts/
RUN scripts/setup build && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake --preset release \
    && cmake --build --preset release \
    && cmake --install build/release --prefix /usr/local --strip \
    && rm -rf build

FROM debian:bookworm-slim
# The last line: the drivers of RDMA devices, which libibverbs loads by name, and tools to see the devices.
RUN export DEBIAN_FRONTEND=noninteractive \
    && apt-get update \
    && apt-get install -y --no-install-recommends \
       libibverbs1 libnuma1 liburing2 libabsl20220623 libhwloc15 libpmix2 libssl3 libcpp-httplib0.11 \
       ibverbs-providers ibverbs-utils iproute2 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/local /usr/local
CMD ["cariama-info"]
