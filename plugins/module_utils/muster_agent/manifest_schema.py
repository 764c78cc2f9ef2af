"""The manifest as JSON Schema: written by `python -m muster.contract.twin`, not by hand."""

from __future__ import annotations

from typing import Any

MANIFEST: dict[str, Any] = {
    "additionalProperties": False,
    "properties": {
        "version": {"const": 1, "type": "integer"},
        "cluster": {"pattern": "^[a-z0-9][a-z0-9_.-]{0,62}$", "type": "string"},
        "generation": {"minimum": 0, "type": "integer"},
        "databases": {"items": {"pattern": "^[0-7][0-9a-f]{15}$", "type": "string"}, "type": "array"},
        "runtime_path": {"pattern": "^/[^\\x00]+$", "type": "string"},
        "sshd_port": {"maximum": 65535, "minimum": 1, "type": "integer"},
        "folders_root": {"pattern": "^/[^\\x00]+$", "type": "string"},
        "begin_by_s": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}]},
        "start_timeout_s": {"minimum": 0, "type": "integer"},
        "stop_grace_s": {"minimum": 0, "type": "integer"},
        "log_max_bytes": {"minimum": 0, "type": "integer"},
        "overlays": {"anyOf": [{"items": {"$ref": "#/$defs/OverlayEntry"}, "type": "array"}, {"type": "null"}]},
        "sessions": {
            "items": {
                "discriminator": {
                    "mapping": {
                        "keep": "#/$defs/KnownSession",
                        "launch": "#/$defs/LaunchedSession",
                        "release": "#/$defs/KnownSession",
                        "stop": "#/$defs/KnownSession",
                    },
                    "propertyName": "desired",
                },
                "oneOf": [{"$ref": "#/$defs/LaunchedSession"}, {"$ref": "#/$defs/KnownSession"}],
            },
            "type": "array",
        },
        "kept_spools": {
            "items": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "type": "string"},
            "type": "array",
        },
    },
    "required": [
        "version",
        "cluster",
        "generation",
        "databases",
        "runtime_path",
        "sshd_port",
        "folders_root",
        "begin_by_s",
        "start_timeout_s",
        "stop_grace_s",
        "log_max_bytes",
        "overlays",
        "sessions",
        "kept_spools",
    ],
    "type": "object",
    "$defs": {
        "AppEntry": {
            "additionalProperties": False,
            "properties": {
                "name": {"pattern": "^[a-z0-9][a-z0-9-]{0,31}$", "type": "string"},
                "port": {"maximum": 65535, "minimum": 1, "type": "integer"},
                "health": {"anyOf": [{"pattern": "^/[!-~]*$", "type": "string"}, {"type": "null"}]},
                "starts": {"type": "boolean"},
            },
            "required": ["name", "port", "health", "starts"],
            "type": "object",
        },
        "DevicesEntry": {
            "additionalProperties": False,
            "properties": {
                "driver": {"enum": ["nvidia", "cdi"], "type": "string"},
                "ids": {
                    "items": {"pattern": "^[A-Za-z0-9][A-Za-z0-9_./=-]{0,159}$", "type": "string"},
                    "type": "array",
                },
            },
            "required": ["driver", "ids"],
            "type": "object",
        },
        "FileEntry": {
            "additionalProperties": False,
            "properties": {"content": {"type": "string"}, "mode": {"pattern": "^0[0-7]{3}$", "type": "string"}},
            "required": ["content", "mode"],
            "type": "object",
        },
        "FolderEntry": {
            "additionalProperties": False,
            "properties": {
                "path": {"type": "string"},
                "uid": {"exclusiveMaximum": 4294967295, "minimum": 0, "type": "integer"},
                "number": {"exclusiveMaximum": 4294967295, "minimum": 0, "type": "integer"},
                "quota_bytes": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}]},
            },
            "required": ["path", "uid", "number", "quota_bytes"],
            "type": "object",
        },
        "GpuAccessEntry": {
            "additionalProperties": False,
            "properties": {
                "devices": {"anyOf": [{"$ref": "#/$defs/DevicesEntry"}, {"type": "null"}]},
                "libraries": {
                    "patternProperties": {
                        "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$": {"pattern": "^/[^\\x00]+$", "type": "string"}
                    },
                    "type": "object",
                },
                "mounts": {"items": {"$ref": "#/$defs/HostMountEntry"}, "type": "array"},
                "env": {"additionalProperties": {"type": "string"}, "type": "object"},
                "usage": {"type": "boolean"},
                "leases": {"items": {"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,95}$", "type": "string"}, "type": "array"},
            },
            "required": ["devices", "libraries", "mounts", "env", "usage", "leases"],
            "type": "object",
        },
        "GpuEntry": {
            "additionalProperties": False,
            "properties": {
                "uuid": {"pattern": "^[A-Za-z0-9][A-Za-z0-9_./-]{0,95}$", "type": "string"},
                "amount": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}]},
                "capacity": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}]},
                "mem_bytes": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}]},
                "compute": {"anyOf": [{"maximum": 1000, "minimum": 0, "type": "integer"}, {"type": "null"}]},
            },
            "required": ["uuid", "amount", "capacity", "mem_bytes", "compute"],
            "type": "object",
        },
        "HostMountEntry": {
            "additionalProperties": False,
            "properties": {
                "source": {"pattern": "^/[^\\x00]+$", "type": "string"},
                "target": {"pattern": "^/[^\\x00]+$", "type": "string"},
                "read_only": {"type": "boolean"},
            },
            "required": ["source", "target", "read_only"],
            "type": "object",
        },
        "KnownSession": {
            "additionalProperties": False,
            "properties": {
                "id": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "type": "string"},
                "name": {"type": "string"},
                "generation": {"minimum": 0, "type": "integer"},
                "desired": {"enum": ["release", "keep", "stop"], "type": "string"},
                "network": {"$ref": "#/$defs/NetworkEntry"},
                "notice": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "signal": {"anyOf": [{"$ref": "#/$defs/SignalEntry"}, {"type": "null"}]},
                "kernels": {"items": {"$ref": "#/$defs/NamedKernel"}, "type": "array"},
            },
            "required": ["id", "name", "generation", "desired", "network", "notice", "signal", "kernels"],
            "type": "object",
        },
        "LaunchedKernel": {
            "additionalProperties": False,
            "properties": {
                "id": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "type": "string"},
                "name": {"pattern": "^[a-z0-9][a-z0-9-]{0,62}$", "type": "string"},
                "image": {"type": "string"},
                "command": {"items": {"type": "string"}, "type": "array"},
                "env": {"additionalProperties": {"type": "string"}, "type": "object"},
                "user": {"$ref": "#/$defs/UserEntry"},
                "resources": {"$ref": "#/$defs/ResourcesEntry"},
                "apps": {"items": {"$ref": "#/$defs/AppEntry"}, "type": "array"},
                "gpus": {"items": {"$ref": "#/$defs/GpuEntry"}, "type": "array"},
                "gpu_access": {"anyOf": [{"$ref": "#/$defs/GpuAccessEntry"}, {"type": "null"}]},
                "mounts": {"items": {"$ref": "#/$defs/MountEntry"}, "type": "array"},
                "groups": {"items": {"exclusiveMaximum": 4294967295, "minimum": 0, "type": "integer"}, "type": "array"},
                "publish": {"items": {"$ref": "#/$defs/PublishEntry"}, "type": "array"},
                "files": {
                    "patternProperties": {
                        "^(secrets/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$": {"$ref": "#/$defs/FileEntry"}
                    },
                    "type": "object",
                },
            },
            "required": [
                "id",
                "name",
                "image",
                "command",
                "env",
                "user",
                "resources",
                "apps",
                "gpus",
                "gpu_access",
                "mounts",
                "groups",
                "publish",
                "files",
            ],
            "type": "object",
        },
        "LaunchedSession": {
            "additionalProperties": False,
            "properties": {
                "id": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "type": "string"},
                "name": {"type": "string"},
                "generation": {"minimum": 0, "type": "integer"},
                "desired": {"const": "launch", "type": "string"},
                "release": {"type": "boolean"},
                "public_key": {"pattern": "^ssh-ed25519 [A-Za-z0-9+/=]{1,128}( [!-~]{1,128})?$", "type": "string"},
                "network": {"$ref": "#/$defs/NetworkEntry"},
                "folders": {"items": {"$ref": "#/$defs/FolderEntry"}, "type": "array"},
                "files": {
                    "patternProperties": {
                        "^(secrets/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$": {"$ref": "#/$defs/FileEntry"}
                    },
                    "type": "object",
                },
                "kernels": {"items": {"$ref": "#/$defs/LaunchedKernel"}, "type": "array"},
            },
            "required": [
                "id",
                "name",
                "generation",
                "desired",
                "release",
                "public_key",
                "network",
                "folders",
                "files",
                "kernels",
            ],
            "type": "object",
        },
        "MountEntry": {
            "additionalProperties": False,
            "properties": {
                "folder": {"type": "string"},
                "target": {"type": "string"},
                "read_only": {"type": "boolean"},
                "owned": {"type": "boolean"},
            },
            "required": ["folder", "target", "read_only", "owned"],
            "type": "object",
        },
        "NamedKernel": {
            "additionalProperties": False,
            "properties": {
                "id": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "type": "string"},
                "name": {"pattern": "^[a-z0-9][a-z0-9-]{0,62}$", "type": "string"},
            },
            "required": ["id", "name"],
            "type": "object",
        },
        "NetworkEntry": {
            "additionalProperties": False,
            "properties": {
                "name": {"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$", "type": "string"},
                "driver": {"enum": ["bridge", "overlay"], "type": "string"},
            },
            "required": ["name", "driver"],
            "type": "object",
        },
        "OverlayEntry": {
            "additionalProperties": False,
            "properties": {
                "session_id": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "type": "string"},
                "name": {"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$", "type": "string"},
                "generation": {"minimum": 0, "type": "integer"},
                "mtu": {"anyOf": [{"maximum": 65535, "minimum": 68, "type": "integer"}, {"type": "null"}]},
                "encrypted": {"type": "boolean"},
            },
            "required": ["session_id", "name", "generation", "mtu", "encrypted"],
            "type": "object",
        },
        "PublishEntry": {
            "additionalProperties": False,
            "properties": {
                "container_port": {"maximum": 65535, "minimum": 1, "type": "integer"},
                "host_ip": {"pattern": "^([0-9A-Fa-f:.]{2,45})?$", "type": "string"},
                "host_port": {
                    "anyOf": [
                        {"maximum": 65535, "minimum": 0, "type": "integer"},
                        {"pattern": "^\\d{1,5}(-\\d{1,5})?$", "type": "string"},
                    ]
                },
            },
            "required": ["container_port", "host_ip", "host_port"],
            "type": "object",
        },
        "ResourcesEntry": {
            "additionalProperties": False,
            "properties": {
                "cpu_milli": {"minimum": 0, "type": "integer"},
                "mem_bytes": {"minimum": 0, "type": "integer"},
                "shm_bytes": {"minimum": 0, "type": "integer"},
                "disk_bytes": {"anyOf": [{"minimum": 0, "type": "integer"}, {"type": "null"}]},
                "pids": {"minimum": 0, "type": "integer"},
                "cpuset": {
                    "anyOf": [{"pattern": "^\\d+(-\\d+)?(,\\d+(-\\d+)?)*$", "type": "string"}, {"type": "null"}]
                },
            },
            "required": ["cpu_milli", "mem_bytes", "shm_bytes", "disk_bytes", "pids", "cpuset"],
            "type": "object",
        },
        "SignalEntry": {
            "additionalProperties": False,
            "properties": {
                "signal": {"maximum": 64, "minimum": 1, "type": "integer"},
                "count": {"minimum": 1, "type": "integer"},
                "kernels": {"items": {"pattern": "^[a-z0-9][a-z0-9-]{0,62}$", "type": "string"}, "type": "array"},
            },
            "required": ["signal", "count", "kernels"],
            "type": "object",
        },
        "UserEntry": {
            "additionalProperties": False,
            "properties": {
                "name": {"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$", "type": "string"},
                "uid": {"exclusiveMaximum": 4294967295, "minimum": 0, "type": "integer"},
                "gid": {"exclusiveMaximum": 4294967295, "minimum": 0, "type": "integer"},
                "home": {"pattern": "^/[^\\x00]+$", "type": "string"},
            },
            "required": ["name", "uid", "gid", "home"],
            "type": "object",
        },
    },
}
