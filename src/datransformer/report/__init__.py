"""From numbers to pictures. Imports no model."""
