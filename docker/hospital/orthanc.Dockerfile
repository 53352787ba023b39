# Orthanc with DICOMweb, as Debian packages it: the PACS of the profile `hospital`.
ARG DEBIAN_IMAGE=debian:bookworm-slim
FROM ${DEBIAN_IMAGE}
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends orthanc orthanc-dicomweb \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /etc/orthanc \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
    && install -d -m 0700 -o 10002 -g 10002 /archive
USER 10002:10002
EXPOSE 4242 8042
ENTRYPOINT ["Orthanc", "/etc/orthanc/orthanc.json"]
