"""What is shown of each kind's answers: an ``Answers`` a kind, named by ``pipeline.tasks.registry``."""
