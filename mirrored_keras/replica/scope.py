"""temp"""
def check_compile(model, *, optimizer, metrics): pass
