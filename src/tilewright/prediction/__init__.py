"""The run time of a kernel on any known GPU: counts from the simulator, resources from the compiler."""

from tilewright.model.prediction import Prediction, Term
from tilewright.prediction.predict import predict, predict_rung

__all__ = ["Prediction", "Term", "predict", "predict_rung"]
