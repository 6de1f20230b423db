"""What images show: text, code, tables, bar charts and diagrams, by OCR and exact geometry; no model is asked."""
