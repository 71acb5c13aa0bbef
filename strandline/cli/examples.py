"""An example of each command, for the end of its help. A test parses every one of them.

A command with an epilog of its own keeps it.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "strandline up --data ./cluster",
        "strandline up --secure --data ./cluster",
        "strandline up --brokers 1 --controllers 1 --set log.retention.ms=60000",
    ),
    "cert ca": ("strandline cert ca --dir ./certs",),
    "cert node": ("strandline cert node broker-1 --host broker-1.example.com --host 10.0.0.5",),
    "cert user": ("strandline cert user admin --dir ./certs",),
    "cert password": ("strandline cert password broker-1 --dir ./certs",),
    "cert renew": ("strandline cert renew broker-1 broker-2 --dir ./certs",),
    "cert list": ("strandline cert list --dir ./certs",),
    "node list": ("strandline node list", "strandline node list --data ./cluster --wide"),
    "node kill": ("strandline node kill broker-1",),
    "node stop": ("strandline node stop controller-101 --data ./cluster",),
    "node pause": ("strandline node pause broker-2",),
    "node resume": ("strandline node resume broker-2",),
    "node start": ("strandline node start broker-1",),
    "demo": ("strandline demo --lines 20000",),
    "chaos list": ("strandline chaos list",),
    "chaos run": ("strandline chaos run kill-leader", "strandline chaos run kill-leader --local ./cluster --repeat 3"),
    "topic create": (
        "strandline topic create orders -p 6 -r 3",
        "strandline topic create log -p 1 -c retention.ms=-1 -c min.insync.replicas=2",
        "strandline topic create placed --replica-assignment 1:2:3,2:3:1",
    ),
    "topic list": ("strandline topic list", "strandline topic list -o json", "strandline topic list -o plain | cut -f 1"),
    "topic describe": ("strandline topic describe orders", "strandline topic describe --under-replicated"),
    "topic alter": (
        "strandline topic alter orders -p 12 -c retention.ms=86400000",
        "strandline topic alter orders --unset retention.ms",
    ),
    "topic offsets": ("strandline topic offsets orders", "strandline topic offsets orders --watch"),
    "topic analyze": ("strandline topic analyze orders", "strandline topic analyze orders -p 0 -o yaml"),
    "log-dirs describe": ("strandline log-dirs describe --topic orders --partitions",),
    "log-dirs move": ("strandline log-dirs move orders:0 orders:3 --broker 1 --to /disk2",),
    "topic trim": ("strandline topic trim orders --before 1000 -p 0", "strandline topic trim scratch --before end --yes"),
    "topic delete": ("strandline topic delete orders", "strandline topic delete scratch --if-exists --yes"),
    "topic producers": ("strandline topic producers orders -p 0",),
    "cluster describe": ("strandline cluster describe -b 127.0.0.1:9092",),
    "broker drain": ("strandline broker drain 3 --plan", "strandline broker drain 3 --throttle 20MB"),
    "broker undrain": ("strandline broker undrain 3",),
    "broker unregister": ("strandline broker unregister 4",),
    "cluster unregister": ("strandline cluster unregister 4",),
    "health": (
        "strandline health --cluster",
        "strandline health --cluster --brokers 3",
        "strandline health --broker 127.0.0.1:9092",
    ),
    "top": ("strandline top", "strandline top --interval 0.5"),
    "doctor": ("strandline doctor", "strandline doctor -b broker-1.example.com:9092 -o json"),
    "quorum describe": ("strandline quorum describe",),
    "reassign": (
        "strandline reassign --topics orders --brokers 4,5,6 --plan",
        "strandline reassign --topics orders --brokers 4,5,6 --apply --throttle 10MB",
        "strandline reassign --topics orders --replication-factor 2 --apply --wait",
        "strandline reassign --balance --apply",
        "strandline reassign --progress",
        "strandline reassign --cancel",
    ),
    "elect": ("strandline elect orders 0 --preferred", "strandline elect --preferred --all"),
    "recover": ("strandline recover --plan", "strandline recover --apply orders 0 --broker 2"),
    "features describe": ("strandline features describe",),
    "features upgrade": ("strandline features upgrade", "strandline features upgrade --level 1 --dry-run"),
    "log verify": ("strandline log verify ./cluster/broker-1/data",),
    "log dump": ("strandline log dump orders-0/00000000000000000000.log --records",),
    "pipeline verify": (
        "strandline pipeline verify ./cluster --html verify.html",
        "strandline pipeline verify /backup/broker-1 /backup/broker-2 --topic orders",
    ),
    "pipeline replication": ("strandline pipeline replication cluster --html replication.html",),
    "pipeline audit": ("strandline pipeline audit --topic orders --lake lake --html report.html",),
    "pipeline compact": ("strandline pipeline compact lake --topic orders",),
    "pipeline materialize": ("strandline pipeline materialize --topic customers --to snapshots",),
    "pipeline snapshot": ("strandline pipeline snapshot snapshots",),
    "pipeline replay": ("strandline pipeline replay --topic orders --to copy --checkpoint replay-1",),
    "pipeline simulate": ("strandline pipeline simulate --seeds 1000",),
    "pipeline offload": ("strandline pipeline offload --topic orders --to lake",),
    "pipeline lake": ("strandline pipeline lake lake --checksums",),
    "bench produce": ("strandline bench produce --records 1000000 --record-size 100",),
    "bench consume": ("strandline bench consume --records 1000000",),
    "bench latency": ("strandline bench latency --records 10000 --acks 1",),
    "bench failover": ("strandline bench failover --fault kill-leader",),
    "simulate": ("strandline simulate --seed 7", "strandline simulate --seed 42 --scenario S03 --trace"),
    "group list": ("strandline group list", "strandline group list --state Stable"),
    "group describe": ("strandline group describe billing", "strandline group describe billing --members"),
    "group lag": ("strandline group lag --watch", "strandline group lag billing -o json"),
    "group seek": (
        "strandline group seek billing --to earliest --dry-run",
        "strandline group seek billing --to @2026-01-01T12:00 --topic orders",
        "strandline group seek billing --to shift:-10 --topic orders:0,1 --yes",
        "strandline group seek billing --export > offsets.csv",
        "strandline group seek billing --from-file offsets.csv --dry-run",
    ),
    "group delete-offsets": (
        "strandline group delete-offsets billing --topic orders",
        "strandline group delete-offsets billing -t orders:0,1 -t payments --yes",
    ),
    "group delete": ("strandline group delete billing", "strandline group delete billing audit --yes"),
    "group remove-member": (
        "strandline group remove-member billing --all",
        "strandline group remove-member billing --instance till-3",
    ),
    "transaction list": ("strandline transaction list", "strandline transaction list --state Ongoing --longer-than 1m"),
    "transaction describe": ("strandline transaction describe orders-1",),
    "transaction find-hanging": (
        "strandline transaction find-hanging",
        "strandline transaction find-hanging --topic orders --older-than 1h",
    ),
    "transaction abort": ("strandline transaction abort orders 0 --start-offset 1500",),
    "transaction fence": ("strandline transaction fence orders-1",),
    "acl list": ("strandline acl list", "strandline acl list --topic orders --match"),
    "acl add": (
        "strandline acl add User:alice --producer --topic orders",
        "strandline acl add User:bob --consumer --topic orders --group billing",
        "strandline acl add User:carol --operation READ --topic logs- --prefixed",
        "strandline acl add User:mallory --deny --operation ALL --topic '*'",
    ),
    "acl remove": (
        "strandline acl remove --principal User:alice --topic orders",
        "strandline acl remove --principal User:alice --yes",
    ),
    "acl check": (
        "strandline acl check User:alice WRITE topic:orders",
        "strandline acl check User:bob READ group:billing --host 10.1.2.3",
    ),
    "user list": ("strandline user list",),
    "user add": ("strandline user add alice", "strandline user add alice --password-file alice.secret"),
    "user passwd": ("strandline user passwd alice",),
    "user remove": ("strandline user remove alice",),
    "quota list": ("strandline quota list", "strandline quota list --user alice"),
    "quota set": (
        "strandline quota set --user alice producer_byte_rate=10MB",
        "strandline quota set --user alice --client-id etl producer_byte_rate=1MB",
        "strandline quota set --user-default request_percentage=50",
        "strandline quota set --ip-default connection_creation_rate=20",
    ),
    "quota unset": ("strandline quota unset --user alice producer_byte_rate",),
    "context list": ("strandline context list",),
    "context show": ("strandline context show",),
    "context add": ("strandline context add prod b1:9092,b2:9092", "strandline context add local 127.0.0.1:9092 --use"),
    "context use": ("strandline context use prod", "strandline topic list --context prod"),
    "context remove": ("strandline context remove prod",),
    "config describe": ("strandline config describe topic orders", "strandline config describe broker 1 --all"),
    "config get": ("strandline config get topic orders", "strandline config get broker 1 log.cleaner.threads"),
    "config set": (
        "strandline config set topic orders retention.ms=-1 cleanup.policy+=compact",
        "strandline config set cluster log.cleaner.threads=2",
        "strandline config set broker 1 log.cleaner.io.max.bytes.per.second=10000000",
        "strandline config set group kitchen consumer.session.timeout.ms=30000",
    ),
    "config unset": ("strandline config unset topic orders retention.ms",),
    "config diff": (
        "strandline config diff topic orders",
        "strandline config diff broker 1 2",
        "strandline config diff cluster",
    ),
    "config keys": ("strandline config keys retention",),
    "completion": (
        'eval "$(strandline completion bash)"',
        "strandline completion fish > ~/.config/fish/completions/strandline.fish",
    ),
    "broker": ("strandline broker --config broker-1.toml --set broker.rack=a",),
    "controller": ("strandline controller --config controller-101.toml",),
}
"""The command's words -> command lines."""


def epilog(path: str) -> str | None:
    """The end of a command's help. The mark `\\b` keeps its line breaks."""
    lines = EXAMPLES.get(path)
    return (
        None
        if lines is None
        else "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])
    )
