"""Optional features; `bertkit.registry` says how they and other packages add to bertkit."""
