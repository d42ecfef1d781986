"""A plan as a frontier and the command line see it: numbers and a name, no program behind them."""

import dataclasses

from jaxplan.plans._outline import Outline, Split

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeAudit:
    ok: bool

    def table(self):
        return "predicted beside compiled"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakePlan:
    name: str
    time_seconds: float
    memory_bytes: int
    compute_seconds: float = 0.001
    communication_seconds: float = 0.0
    hidden_seconds: float = 0.0
    overlapped: bool = False
    lower_bound_seconds: float = 0.0
    gap: float | None = None
    most_configurations: int | None = None
    outline: Outline = dataclasses.field(default_factory=Outline)
    memory_parts: dict[str, int] = dataclasses.field(default_factory=dict)
    microbatches: None = None
    recomputed_loops: None = None
    sort_blocks: None = None
    offload: None = None
    sequences: None = None
    stages: None = None
    faithful: bool = True
    verified: None = None

    @property
    def memory_interval(self):
        return None

    @property
    def memory_interval_bytes(self):
        return None

    @property
    def summary(self):
        return str(self.outline)

    def to_json(self):
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data):
        outline = data["outline"]
        outline = outline | {"splits": tuple(Split(**split) for split in outline["splits"])}
        return FakePlan(**data | {"outline": Outline(**outline)})

    def explain(self):
        return f"explanation of {self.name}"

    def audit(self):
        return FakeAudit(ok=self.faithful)

    def save(self, path):
        with open(path, "w") as file:
            file.write(self.name)
