"""Generation parameters by kind of task, where neither the caller nor the file says otherwise."""

from octet.config.ensemble import TaskConfig

DEFAULT_TASK = "default"
TASKS = (
    TaskConfig(DEFAULT_TASK),
    TaskConfig("json_parsing", temperature=0.2, max_tokens=2048, repetition_penalty=1.0),
    TaskConfig("creative_writing", temperature=0.8, max_tokens=4096, repetition_penalty=1.1),
    TaskConfig("code_generation", temperature=0.4, max_tokens=8192, repetition_penalty=1.05),
    TaskConfig("review", temperature=0.2, max_tokens=2048, repetition_penalty=1.05),
    TaskConfig("debug", temperature=0.2, max_tokens=2048, repetition_penalty=1.05),
)


def with_usual_tasks(own: tuple[TaskConfig, ...]) -> tuple[TaskConfig, ...]:
    """The usual ones, changed where the file changes them, then the file's own."""
    named = {task.name: task for task in (*TASKS, *own)}
    return tuple(named.values())
