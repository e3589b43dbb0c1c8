"""The state that all connections of a gateway share: clients, rights, schemas, quotas."""
