"""semi-PD: prefill and decode at once on shares of every device, over one cache."""

from orrery.systems.serve.semi_pd.controller import SemiPD
from orrery.systems.serve.semi_pd.forecast import DecodeFit, PrefillFit, Recent

__all__ = ["DecodeFit", "PrefillFit", "Recent", "SemiPD"]
