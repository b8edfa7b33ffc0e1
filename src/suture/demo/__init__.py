"""What Suture is for, shown on the embedded model in a few minutes: `suture demo`."""

from __future__ import annotations

from suture.demo.tour import run as run
