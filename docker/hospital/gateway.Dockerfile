# The gateway: python -m medclip_hospital gateway, without torch, as a user of its own.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY docker/tools.lock docker/hospital/gateway.lock ./
RUN python -m venv /opt/tools \
    && /opt/tools/bin/pip install --no-compile --require-hashes --requirement tools.lock \
    && python -m venv --without-pip /opt/venv
RUN /opt/tools/bin/pip --python /opt/venv/bin/python install --require-hashes --only-binary :all: --no-compile \
        --requirement gateway.lock \
    && { /opt/venv/bin/python -m compileall -qq -j 0 /opt/venv/lib || true; }

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# The spool holds identity: nobody else reads it. A new volume takes its owner and mode from here.
RUN find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
    && groupadd --gid 10001 medclip \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin medclip \
    && install -d -m 0700 -o 10001 -g 10001 /spool
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY LICENSE ./
COPY medclip_dcl medclip_dcl
COPY hospital/medclip_hospital medclip_hospital
RUN python -m compileall -q .
USER 10001:10001
EXPOSE 11112
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "medclip_hospital", "gateway", "--config", "/etc/medclip/gateway.yaml"]
