"""What NVIDIA's compilers make of a kernel: PTX, machine code, and a forecast of speed."""
