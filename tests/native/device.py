"""Where the tests of the native engine compute: OCTET_TEST_DEVICE, cpu unless told."""

import os

import torch

DEVICE = torch.device(os.environ.get("OCTET_TEST_DEVICE", "cpu"))
