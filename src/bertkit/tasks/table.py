"""Registry of tasks. A task is imported when it is first used."""

from bertkit.registry import Registry

TASKS = Registry(
    "tasks",
    {
        "answer": "bertkit.tasks.answer:Answer",
        "classify": "bertkit.tasks.classify:Classify",
        "choose": "bertkit.tasks.choose:Choose",
        "respond": "bertkit.tasks.respond:Respond",
        "similarity": "bertkit.tasks.similarity:Similarity",
        "summarize": "bertkit.tasks.summarize:Summarize",
        "tag": "bertkit.tasks.tag:Tag",
    },
)
"""Class of each task, by the name of the task."""
