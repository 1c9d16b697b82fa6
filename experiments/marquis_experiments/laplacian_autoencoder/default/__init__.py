"""The default of the Laplacian autoencoder, chosen by a protocol that was written first (`PROTOCOL.md`)."""
