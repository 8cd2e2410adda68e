# bertkit serve. Without TORCH_INDEX, pip installs torch from PyPI, which includes CUDA. The address of
# PyTorch's CPU builds, or of another CUDA version, is on PyTorch's installation page.
FROM python:3.13-slim AS build
ARG TORCH_INDEX=
ARG EXTRAS=serving,search,export
RUN python -m venv /opt/bertkit
ENV PATH=/opt/bertkit/bin:$PATH
COPY pyproject.toml constraints.txt README.md LICENSE /source/
RUN pip install --no-cache-dir -c /source/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY src /source/src
RUN pip install --no-cache-dir -c /source/constraints.txt "/source[$EXTRAS]"

FROM python:3.13-slim
RUN useradd --create-home bertkit
COPY --from=build /opt/bertkit /opt/bertkit
ENV PATH=/opt/bertkit/bin:$PATH
USER bertkit
EXPOSE 8000
HEALTHCHECK --start-period=2m CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/live')"]
ENTRYPOINT ["bertkit", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models/minilm"]
