"""Who calls the gateway, and how it proves itself elsewhere.

* Callers: ``doorkeeper`` (keys, tokens, signatures), ``access_tokens``, ``signed_requests`` and ``nonces``.
* Secrets: ``secrets`` (vaults), ``secret_refs`` (references in addresses), ``secret_detection``, ``redaction``.
* Signing in elsewhere: ``oauth`` (the OAuth client), ``flow_tokens``, ``authorization``, ``loopback_redirect`` and
  ``sign_ins``, which keeps the tokens.
* Keys: ``master_keys`` seal what is stored (``secret_box``); ``own_keys`` sign for the gateway.

No protocol is known here. One that finds its authorization server in a way of its own registers that with ``sign_ins``.
"""
