"""From a configuration to a job: what auto means, tasks bound to a model, a dry run, a forecast."""
