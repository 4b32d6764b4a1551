"""Maps: examples as points on a plane, for the report of a trainer and a coordinator's page.

Which examples are drawn, and where; features come from whoever has the model.
"""
