"""Write `golden_messages.json` again: messages of the APIs that the Kafka door serves and kafka-python does not have.

    python tests/kafka/record_golden_messages.py kafka-clients-4.3.1.jar

The schemas are those in Kafka's jar, and kafka-python's codec writes the bytes. It fails if our fields differ from the schemas'.
"""

from __future__ import annotations

import json
import random
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden_messages.json")
MESSAGES = 3
"""Random messages of each version."""


def schemas_in(jar: str) -> dict[tuple[int, str], dict[str, Any]]:
    """The schemas in the jar, by API key and type."""
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"common/message/\w+(Request|Response)\.json", name)]
        texts = [archive.read(name).decode() for name in names]
    found = [json.loads(re.sub(r"(?m)^\s*//.*$", "", text)) for text in texts]
    return {(schema["apiKey"], schema["type"]): with_common_structs(schema) for schema in found if "apiKey" in schema}


def with_common_structs(schema: dict[str, Any]) -> dict[str, Any]:
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}

    def fill(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            name = field["type"].removeprefix("[]")
            if name in common:
                field.setdefault("fields", common[name])
            fill(field.get("fields", []))

    fill(schema.get("fields", []))
    return schema


def main(jar: str) -> None:
    from kafka_python_schemas import TheirSchema, their_schemas
    from random_messages import random_fields, to_json
    from test_schemas_golden import codec_of, described, described_theirs

    from strandline.broker.kafka.apis import KAFKA_APIS

    rows = []
    for key, schema in sorted(schemas_in(jar).items()):
        if key in their_schemas() or key[0] not in KAFKA_APIS:
            continue
        theirs, rnd = TheirSchema(schema), random.Random(f"{key}")
        for version in range(theirs.versions[0], theirs.versions[1] + 1):
            struct = codec_of(key, version).struct
            assert described(struct) == described_theirs(theirs.struct, version), (key, version)
            for _ in range(MESSAGES):
                values = random_fields(rnd, struct)
                raw = theirs.encode(struct, version, values).hex()
                rows.append({"api_key": key[0], "kind": key[1], "version": version, "values": to_json(values), "bytes": raw})
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(f"{len(rows)} messages of {len({row['api_key'] for row in rows})} APIs")


if __name__ == "__main__":
    main(sys.argv[1])
