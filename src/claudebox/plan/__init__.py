"""Phase 3, what will be done: policy and facts -> plan, and its renderings. Pure."""
