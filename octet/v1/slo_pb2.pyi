from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Slo(_message.Message):
    __slots__ = ("specialist", "window_seconds", "ttft", "itl", "admission_to_first_token", "pass_rate", "judged", "floor", "correctness_window_seconds", "answered", "preempted_once", "objectives", "relative_error", "routers", "floor_learned")
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    ITL_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    CORRECTNESS_WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_ONCE_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVES_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    FLOOR_LEARNED_FIELD_NUMBER: _ClassVar[int]
    specialist: str
    window_seconds: float
    ttft: Latency
    itl: Latency
    admission_to_first_token: Latency
    pass_rate: float
    judged: int
    floor: float
    correctness_window_seconds: float
    answered: int
    preempted_once: float
    objectives: _containers.RepeatedCompositeFieldContainer[Objective]
    relative_error: float
    routers: int
    floor_learned: bool
    def __init__(self, specialist: _Optional[str] = ..., window_seconds: _Optional[float] = ..., ttft: _Optional[_Union[Latency, _Mapping]] = ..., itl: _Optional[_Union[Latency, _Mapping]] = ..., admission_to_first_token: _Optional[_Union[Latency, _Mapping]] = ..., pass_rate: _Optional[float] = ..., judged: _Optional[int] = ..., floor: _Optional[float] = ..., correctness_window_seconds: _Optional[float] = ..., answered: _Optional[int] = ..., preempted_once: _Optional[float] = ..., objectives: _Optional[_Iterable[_Union[Objective, _Mapping]]] = ..., relative_error: _Optional[float] = ..., routers: _Optional[int] = ..., floor_learned: _Optional[bool] = ...) -> None: ...

class Latency(_message.Message):
    __slots__ = ("samples", "p50", "p95", "p99")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P95_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    samples: int
    p50: float
    p95: float
    p99: float
    def __init__(self, samples: _Optional[int] = ..., p50: _Optional[float] = ..., p95: _Optional[float] = ..., p99: _Optional[float] = ...) -> None: ...

class Objective(_message.Message):
    __slots__ = ("name", "target", "share", "current", "met", "burns", "learned")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    BURNS_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    name: str
    target: float
    share: float
    current: float
    met: bool
    burns: _containers.RepeatedCompositeFieldContainer[Burn]
    learned: bool
    def __init__(self, name: _Optional[str] = ..., target: _Optional[float] = ..., share: _Optional[float] = ..., current: _Optional[float] = ..., met: _Optional[bool] = ..., burns: _Optional[_Iterable[_Union[Burn, _Mapping]]] = ..., learned: _Optional[bool] = ...) -> None: ...

class Burn(_message.Message):
    __slots__ = ("window_seconds", "samples", "rate")
    WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    window_seconds: float
    samples: int
    rate: float
    def __init__(self, window_seconds: _Optional[float] = ..., samples: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

class SloSlice(_message.Message):
    __slots__ = ("version", "specialist", "ttft", "itl", "admission_to_first_token", "answered", "preempted_once", "tallies")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPECIALIST_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    ITL_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_ONCE_FIELD_NUMBER: _ClassVar[int]
    TALLIES_FIELD_NUMBER: _ClassVar[int]
    version: int
    specialist: str
    ttft: bytes
    itl: bytes
    admission_to_first_token: bytes
    answered: int
    preempted_once: int
    tallies: _containers.RepeatedCompositeFieldContainer[SloTally]
    def __init__(self, version: _Optional[int] = ..., specialist: _Optional[str] = ..., ttft: _Optional[bytes] = ..., itl: _Optional[bytes] = ..., admission_to_first_token: _Optional[bytes] = ..., answered: _Optional[int] = ..., preempted_once: _Optional[int] = ..., tallies: _Optional[_Iterable[_Union[SloTally, _Mapping]]] = ...) -> None: ...

class SloTally(_message.Message):
    __slots__ = ("objective", "target", "samples", "breached")
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BREACHED_FIELD_NUMBER: _ClassVar[int]
    objective: str
    target: float
    samples: int
    breached: int
    def __init__(self, objective: _Optional[str] = ..., target: _Optional[float] = ..., samples: _Optional[int] = ..., breached: _Optional[int] = ...) -> None: ...
