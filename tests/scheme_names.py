"""Names of the schemes that tests run over."""

from __future__ import annotations

from stepnet import schemes
from stepnet.schemes.capabilities import takes_fixed_steps

FIXED_STEPS = [name for name in schemes.names("ODE") if takes_fixed_steps(schemes.get(name))]
ADAPTIVE_ONLY = sorted(set(schemes.names("ODE")) - set(FIXED_STEPS))
