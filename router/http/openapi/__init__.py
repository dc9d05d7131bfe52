"""The document that says what the HTTP door takes and gives: served at `/openapi.json`."""
