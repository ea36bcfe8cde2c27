"""Other people's protocols on the same store: procedures, so that the simulator, the stepper and a
real store run the same text. Each names its safety decisions as fields of a small `...Rules`.
"""
