"""Networks with the face of scikit-learn."""

from stepnet.estimators.classifier import NetClassifier
from stepnet.estimators.regressor import NetRegressor

__all__ = ["NetClassifier", "NetRegressor"]
