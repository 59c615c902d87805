"""The command `rope`: a config's rotary embedding at a length, as a table and a picture."""
