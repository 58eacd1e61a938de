"""Phase 4, doing it: plan -> processes, state, descriptors."""
