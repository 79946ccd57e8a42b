"""A small network of Linux network namespaces around one NAT: for the demo and for the tests on real kernels.

    sub1 100.64.0.10 --+                                   +-- srv1 192.0.2.10, 192.0.2.11
                       +-- access --- [NAT] --- core ------+
    sub2 100.64.0.11 --+   (switch)   .1  .2    (router)   +-- far -- srv2 198.18.2.10
                                                           MTU 1280

Nothing outside these namespaces is touched; what a killed run leaves is removed by the next one.
"""
