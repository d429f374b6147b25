from common import RANK, wait

if RANK == 1:
    import ctypes

    # std::terminate of the C++ library, which says so and aborts
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()
wait()
