"""The paper's tables and figures, through the product's own path, beside what is simpler."""
