"""A plan as a frontier and the command line see it: numbers and a name, no program behind them."""

import dataclasses

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
    lower_bound_seconds: float = 0.0
    gap: float | None = None
    most_configurations: int | None = None
    summary: str = ""
    memory_parts: dict[str, int] = dataclasses.field(default_factory=dict)
    faithful: bool = True
    verified: None = None

    def to_json(self):
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data):
        return FakePlan(**data)

    def explain(self):
        return f"explanation of {self.name}"

    def audit(self):
        return FakeAudit(ok=self.faithful)

    def save(self, path):
        with open(path, "w") as file:
            file.write(self.name)
