"""The tools a model may call, each confined to the session's workspace by one opener (`workspace`)."""
