"""Every error that prl raises on purpose; each is also the standard class a caller may already catch."""


class PrlError(Exception):
    """Base of all prl errors."""


class ConfigError(PrlError, ValueError):
    """A setting is wrong, unknown, or fits no other setting."""


class DataError(PrlError, ValueError):
    """A value that travels between stages is malformed: lengths, NaN, ids, types."""


class EngineError(PrlError, RuntimeError):
    """An inference engine cannot do, or did not do, what was asked."""


class TrainingError(PrlError, RuntimeError):
    """A training call could not be carried out; weights are as they were."""
