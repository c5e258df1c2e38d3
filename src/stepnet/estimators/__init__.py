"""Networks as scikit-learn estimators."""

from stepnet.estimators.classifier import NetClassifier
from stepnet.estimators.feynman_kac_classifier import FeynmanKacClassifier
from stepnet.estimators.feynman_kac_regressor import FeynmanKacRegressor
from stepnet.estimators.regressor import NetRegressor
from stepnet.estimators.settings import NotStored

__all__ = ["FeynmanKacClassifier", "FeynmanKacRegressor", "NetClassifier", "NetRegressor", "NotStored"]


def __dir__() -> list[str]:
    return __all__
