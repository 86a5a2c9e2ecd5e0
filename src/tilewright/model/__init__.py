"""What a kernel can reach on a device, predicted and never measured: occupancy, legality, time."""
