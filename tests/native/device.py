"""The device of the native engine's tests: OCTET_TEST_DEVICE, by default cpu."""

import os

import torch

DEVICE = torch.device(os.environ.get("OCTET_TEST_DEVICE", "cpu"))
