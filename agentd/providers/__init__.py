"""Model providers: sans-IO wire decoders, request builders and one module that does HTTP. One event contract (`stream`)."""
