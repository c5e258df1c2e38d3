"""Networks as scikit-learn estimators."""

from stepnet.estimators.classifier import NetClassifier
from stepnet.estimators.regressor import NetRegressor
from stepnet.estimators.settings import NotStored

__all__ = ["NetClassifier", "NetRegressor", "NotStored"]


def __dir__() -> list[str]:
    return __all__
