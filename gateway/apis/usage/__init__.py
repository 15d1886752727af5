"""Who used what: the sums of the ledger, for operators and for tenants."""
