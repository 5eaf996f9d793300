"""What can go wrong with the test cluster, as one exception tree."""


class ClusterError(Exception):
    """The cluster could not be started, used or taken down; the text says why and what to do."""


class ClusterBusyError(ClusterError):
    """Somebody else is starting, using or taking down the cluster of this base folder."""


class FaultUnavailableError(ClusterError):
    """This machine cannot inject the fault asked for; the text says what is missing."""
