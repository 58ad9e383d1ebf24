"""The shapes of the account, its use and its ledger."""
