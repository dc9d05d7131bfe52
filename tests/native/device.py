"""The device that tests of the native engine use: OCTET_TEST_DEVICE, by default cpu."""

import os

import torch

DEVICE = torch.device(os.environ.get("OCTET_TEST_DEVICE", "cpu"))
