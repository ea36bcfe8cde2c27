"""The account that Azure clients and local servers have for development; needs no SDK."""

DEVELOPMENT_ACCOUNT = "devstoreaccount1"
# Public: Microsoft's documentation names it for local servers ("Use the Azurite emulator").
DEVELOPMENT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
