"""Archives of images as engines with containerd's image store read them (OCI image layout and image specification)."""

import hashlib
import json
from collections.abc import Iterator

from muster.core.images.names import parse_image_name

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.partition(':')[2]}"


def layout_of(digest: str, size: int, media_type: str, reference: str) -> Iterator[tuple[str, bytes]]:
    """Yield by name the files that say of a manifest or an index how the image is called.

    Raises ValueError where `reference` is no image name.
    """
    name = parse_image_name(reference)
    if name is None:
        raise ValueError(f"{reference} is no image name")
    annotations = {
        "io.containerd.image.name": f"{name.registry}/{name.path}:{name.tag or 'latest'}",
        "org.opencontainers.image.ref.name": name.tag or "latest",
    }
    entry = {"mediaType": media_type, "digest": digest, "size": size, "annotations": annotations}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
    yield "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    yield "index.json", json.dumps(index).encode()
